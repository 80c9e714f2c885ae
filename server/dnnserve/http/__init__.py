"""HTTP/1.1 within limits, whatever is served over it: the inference protocol (`front/rest`), and pages for operators (`web`)."""
