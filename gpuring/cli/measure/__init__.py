"""How `gpuring bench`, `demo` and `doctor` measure, and all of bench/ in the source tree.

    crew      processes that play roles      figures   distributions, and what was measured where
    attempt   a failure becomes a figure     stored    a whole run, in a JSON file
    card      the machine                    mps       CUDA's Multi-Process Service
    settings  where and how long             patterns  frames that can be verified
    signals   Ctrl-C and SIGTERM             kernels   of a GPU; nvrtc compiles them without CuPy

What is measured is elsewhere: in cli/bench, and in bench/.
"""
