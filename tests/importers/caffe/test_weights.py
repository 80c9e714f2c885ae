from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from dnncore.errors import BackendUnavailableError, ModelImportError
from dnncore.importers.caffe import import_caffe, read_mean
from dnncore.importers.caffe.dnncore_caffe_pb2 import BlobProto, NetParameter
from tests.importers.caffe.files import blob, caffemodel, data, layer, random_blobs
from tests.importers.caffe.nets import lenet

TEXT = lenet(5)
BLOBS = random_blobs(TEXT)


@pytest.mark.parametrize("how", ["shape", "legacy", "double", "raw32", "raw16"])
@pytest.mark.parametrize("generation", [0, 1, 2])
def test_weights_are_read_however_they_are_kept(how: str, generation: int) -> None:
    weights = import_caffe(TEXT.encode(), caffemodel(BLOBS, how, generation)).weights
    for name, (weight, bias) in BLOBS.items():
        rounded = np.float16 if how == "raw16" else np.float32
        assert np.array_equal(weights[f"{name}.weight"], weight.astype(rounded).astype(np.float32))
        assert np.array_equal(weights[f"{name}.bias"], bias.astype(rounded).astype(np.float32))


def test_numbers_that_nvidias_fork_uses_for_something_else_do_no_harm() -> None:
    """Its 145 to 148 are enumerations, BVLC's messages."""
    net = NetParameter.FromString(caffemodel(BLOBS, "raw32"))
    fields = b"".join(bytes([(number << 3) & 0x7F | 0x80, number >> 4, 2]) for number in range(145, 149))
    for layer_ in net.layer:
        layer_.MergeFromString(fields)
    assert np.array_equal(import_caffe(TEXT.encode(), net.SerializeToString()).weights["ip1.bias"], BLOBS["ip1"][1])


def test_files_are_read_by_path(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(TEXT)
    (tmp_path / "net.caffemodel").write_bytes(caffemodel(BLOBS))
    (tmp_path / "mean.binaryproto").write_bytes(blob(np.zeros((3, 2, 2), np.float32), "legacy").SerializeToString())
    found = import_caffe(tmp_path / "net.prototxt", str(tmp_path / "net.caffemodel"))
    assert np.array_equal(found.weights["ip1.bias"], BLOBS["ip1"][1])
    assert read_mean(tmp_path / "mean.binaryproto").shape == (3, 2, 2)
    with pytest.raises(ModelImportError, match=r"nothing\.prototxt: cannot be read"):
        import_caffe(tmp_path / "nothing.prototxt")


def _hdf5(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for name, arrays in BLOBS.items():
            for place, array in enumerate(arrays):
                file[f"data/{name}/{place}"] = array
    return path


def test_weights_are_read_from_hdf5_and_only_from_the_file_itself(tmp_path: Path) -> None:
    path = _hdf5(tmp_path / "net.caffemodel.h5")
    found = import_caffe(TEXT.encode(), path).weights
    for name, (weight, bias) in BLOBS.items():
        assert np.array_equal(found[f"{name}.weight"], weight)
        assert np.array_equal(found[f"{name}.bias"], bias)
    other = h5py.VirtualSource(path, "data/ip1/1", (500,))
    cases: list[tuple[object, str]] = [
        (h5py.ExternalLink(path, "data/ip1/1"), "/data/ip1/1 is a ExternalLink"),
        (h5py.SoftLink("/data/ip1/0"), "/data/ip1/1 is a SoftLink"),
        (np.array([b"text"]), "numbers are read"),
        (np.zeros(7), r"layer 'ip1': blob 1 is \[7\] in the file"),
        (None, "layer 'ip1' has 1 blobs in the file"),
    ]
    for value, message in cases:
        changed = _hdf5(tmp_path / "changed.h5")
        with h5py.File(changed, "a") as file:
            del file["data/ip1/1"]
            if value is not None:
                file["data/ip1/1"] = value
        with pytest.raises(ModelImportError, match=message):
            import_caffe(TEXT.encode(), changed)
    with h5py.File(_hdf5(changed), "a") as file:
        del file["data/ip1/1"]
        layout = h5py.VirtualLayout((500,), np.float32)
        layout[:] = other
        file.create_virtual_dataset("data/ip1/1", layout)
        del file["data/ip2/1"]
        file.create_dataset("data/ip2/1", (10,), "f4", chunks=(1 << 24,), maxshape=(None,), compression="gzip")
    with pytest.raises(ModelImportError, match="ip1/1 lies in other files"):
        import_caffe(TEXT.encode(), changed)
    with h5py.File(changed, "a") as file:
        del file["data/ip1/1"]
        file["data/ip1/1"] = BLOBS["ip1"][1]
    with pytest.raises(ModelImportError, match="ip2/1 lies in chunks"):
        import_caffe(TEXT.encode(), changed)
    changed.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(ModelImportError, match=r"changed\.h5.*is no HDF5 file, or damaged"):
        import_caffe(TEXT.encode(), changed)


def test_h5py_is_asked_for_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _hdf5(tmp_path / "net.caffemodel.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(BackendUnavailableError, match=r"pip install dnncore\[hdf5\]"):
        import_caffe(TEXT.encode(), path)


def test_layers_without_weights_are_listed_and_may_be_allowed() -> None:
    some = caffemodel({name: BLOBS[name] for name in ("conv1", "ip1")})
    with pytest.raises(ModelImportError) as caught:
        import_caffe(TEXT.encode(), some)
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        f"layer {name!r} has no weights in the file" for name in ("conv2", "ip2")
    ]
    found = import_caffe(TEXT.encode(), some, allow_missing=True).weights
    assert np.array_equal(found["conv1.weight"], BLOBS["conv1"][0])
    assert not found["conv2.weight"].any()  # which is what its filler, the default one, makes


def test_layers_that_the_net_does_not_have_are_passed_over() -> None:
    more = {**BLOBS, "fc99": [np.zeros(3, np.float32)]}
    assert import_caffe(TEXT.encode(), caffemodel(more)).weights.keys() == import_caffe(TEXT.encode()).weights.keys()


def test_weights_of_other_shapes_and_numbers_are_all_listed() -> None:
    wrong = {
        **BLOBS,
        "conv1": [BLOBS["conv1"][0]],
        "ip1": [BLOBS["ip1"][0][:, :-1], BLOBS["ip1"][1]],
        "ip2": [BLOBS["ip2"][0], BLOBS["ip2"][1][:-1]],
    }
    with pytest.raises(ModelImportError) as caught:
        import_caffe(TEXT.encode(), caffemodel(wrong))
    assert [problem.split(" in the file")[0] for problem in caught.value.problems] == [
        "layer 'conv1' has 1 blobs",
        "layer 'ip1': blob 0 is [100, 159]",
        "layer 'ip2': blob 1 is [9]",
    ]
    assert all("rename the layer" in problem for problem in caught.value.problems)


def test_old_extents_are_aligned_to_the_right() -> None:
    text = data(1, 6) + layer("InnerProduct", "ip", "data", "inner_product_param { num_output: 4 }")
    weight, bias = random_blobs(text)["ip"]
    assert import_caffe(text.encode(), caffemodel({"ip": [weight, bias]}, "legacy")).weights["ip.weight"].shape == (
        4,
        6,
    )
    left = NetParameter()
    left.layer.add(name="ip", blobs=[BlobProto(num=4, channels=6, height=1, width=1, data=weight.ravel()), blob(bias)])
    with pytest.raises(ModelImportError, match=r"blob 0 is \[4, 6, 1, 1\] in the file, the net needs \[4, 6\]"):
        import_caffe(text.encode(), left.SerializeToString())


def test_weights_are_transposed_where_the_file_has_them_so() -> None:
    text = data(1, 6) + layer("InnerProduct", "ip", "data", "inner_product_param { num_output: 4 transpose: true }")
    weight = random_blobs(text)["ip"][0]
    assert weight.shape == (6, 4)
    assert np.array_equal(import_caffe(text.encode(), caffemodel(random_blobs(text))).weights["ip.weight"], weight.T)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.data.pop(), "has 39 elements, which its extents"),
        (lambda b: b.ClearField("data"), "has 0 elements"),
        (lambda b: b.MergeFrom(BlobProto(raw_data_type=BlobProto.INT, raw_data=b"1234")), "raw data of type INT"),
        (lambda b: b.MergeFrom(BlobProto(raw_data_type=BlobProto.FLOAT, raw_data=b"123")), "and 3 bytes"),
    ],
)
def test_blobs_that_contradict_themselves_are_named(change: object, message: str) -> None:
    text = data(1, 10) + layer("InnerProduct", "ip", "data", "inner_product_param { num_output: 4 bias_term: false }")
    net = NetParameter()
    net.layer.add(name="ip", blobs=[blob(random_blobs(text)["ip"][0])])
    change(net.layer[0].blobs[0])  # type: ignore[operator]
    with pytest.raises(ModelImportError, match=f"layer 'ip': blob 0: .*{message}"):
        import_caffe(text.encode(), net.SerializeToString())


def test_equal_seeds_make_equal_weights_without_a_file() -> None:
    text = TEXT.replace("kernel_size: 5", 'kernel_size: 5 weight_filler { type: "xavier" }')
    first, again, other = (import_caffe(text.encode(), seed=seed).weights["conv1.weight"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
