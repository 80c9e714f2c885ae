"""Models of other frameworks as graphs and weights: one package a format. Files are not trusted; nothing in them is executed."""
