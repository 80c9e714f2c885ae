"""What runs next, where, and what is not worth running: pure, without threads, clock, devices or protocol.

`entry` holds the values that come in, `costs` what batches are expected to take, `queue` the requests of one model in order,
`policy` the choice for a device that is idle, `admission` the choice at arrival, and `dispatcher` the state that they are made in.
`dnnserve.scheduler` is the mechanism around them.
"""
