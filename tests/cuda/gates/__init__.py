"""Static gates: what the machine code of every kernel is made of, held against a committed baseline. No GPU needed.

    python -m tests.cuda.gates                 compile everything, print what changed, exit with 1 where a gate is broken
    python -m tests.cuda.gates --update        the same, then write the baseline
    python -m tests.cuda.gates --kernel NAME   the numbers of one kernel

`figures` reads a cubin, `units` compiles many at a time, `baseline` keeps the numbers, `verdict` judges a change of them and
`summary` prints it after the tests.
"""
