"""The protocols on the wire: .proto sources and the stubs generated from them (`make proto`); no code of its own."""
