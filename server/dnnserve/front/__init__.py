"""The front end: calls come in over gRPC and HTTP, requests go to the scheduler, answers go out.

One handler for each method (`inference`, `classifier`, `health`) sees a `Call`, whichever way it came: over the fast lane, which
uses grpcio's core directly, through grpcio's public server, from a stream (`streams`), or over HTTP (`rest`). Nothing here imports
a backend, and neither the scheduler nor an engine imports anything from here.
"""
