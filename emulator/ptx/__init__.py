"""PTX to C++: `parser` reads a module, `instructions` says what opcodes mean, `translate` writes C++ over emulator/abi."""
