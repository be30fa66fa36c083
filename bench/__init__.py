"""The benchmarks of the source tree: everything, verified and measured, beside others.

    python -m bench                      from the root of a checkout; about eight minutes
    python -m bench --quick --device host
    python -m bench --rivals --mps both  also what people use today, without and with MPS
    python -m bench --from bench/results/bench-h200.json --out DIR

`gpuring bench` is the small one that is installed with the package. What both need is there.
"""
