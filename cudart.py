import ctypes,sys
from pathlib import Path
sys.path.insert(0,'/work/main')
from emulator.driver import stubs
rt=ctypes.CDLL('/usr/local/cuda/lib64/libcudart.so')
rt.cudaGetErrorString.restype=ctypes.c_char_p
rt.cudaGetErrorName.restype=ctypes.c_char_p
for name,code in stubs.error_codes(Path('/usr/local/cuda/include')).items():
    t=rt.cudaGetErrorString(code).decode()
    words = name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()
    mine=stubs._DESCRIPTIONS.get(name,words)
    if t!=mine: print(code,name,rt.cudaGetErrorName(code).decode(),'|',t,'|',mine)
