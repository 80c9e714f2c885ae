"""Which algorithm is fastest, measured: the choices that come with the library."""
