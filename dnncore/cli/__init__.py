"""The command `dnncore`: what can be done with a net without writing Python."""
