"""Programs that torment processes for as long as one likes, and then judge what those wrote down.

    python -m tests.storm rings|bridge|services|soak|soak-services [--help]

The tests here run short ones.
"""
