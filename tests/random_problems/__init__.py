"""Random convolutions: what nobody thought of writing a case for."""
