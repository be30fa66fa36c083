"""The benchmarks of the source tree: everything, verified and measured, beside others.

    python -m bench                      from the root of a checkout; about eight minutes
    python -m bench --quick --device host
    python -m bench --rivals --mps both  also what people use today, without and with MPS
    python -m bench --from bench/results/bench.json --out DIR
    python -m bench.whole                all of bench/results that is a benchmark, and the pages

Its figures come from transitions, throughput, latency, waiting, recovery, baselines, floor
and rivals; measure puts them together, and report, plots and targets make report.html.  Others are
programs of their own:

    services                  calls of services                            docs/performance.md
    peers                     processes in C++, and in Python              docs/performance.md
    spin                      frames at regular times, and who spins       docs/performance.md
    memory_kinds, two_gpus    GPU memory                                        docs/memory.md
    pinned                    uploads from host memory                          docs/memory.md
    bridge, bridge_gpu        rings on other hosts                              docs/bridge.md
    loader                    batches of torch's DataLoader                    docs/loading.md
    recording                 rings in files                                 docs/recording.md
    frontends                 photos                     docs/examples/upscale_frontends.md
    c_api                     gpuring.h                                         docs/c.md
    tracing                   traces                                           docs/tracing.md
    recovery_steps            who waits for the dead, step by step          docs/failure.md

whole runs them, and page writes the pages that are made from their results.  The templates of these
pages are in bench/pages.

`gpuring bench` is the small one that is installed with the package.  What it measures is in
gpuring/cli/bench, and what all of them measure with is in gpuring/cli/measure.  What only the
others need of that kind is here, in options, mps and cpu.
"""
