"""The project's executable specification of the ring protocol, and its exhaustive exploration.

    words.py protocol.py                 the verbs on frames, one yield per access to a shared word
    order.py                             what they do where host order meets device order
    membership.py subscriptions.py       the verbs under LOCK, in the same way
    sequential.py                        the same verbs one after the other: the C core's oracle
    device.py                            GPU streams: queues that run later, or vanish
    doorbell.py                          bell, waiters and futex: no wake-up is lost
    steps.py program.py explore.py invariants.py
                                         every interleaving, every kill, and what must hold
    actors.py configs.py mutants.py      who plays, how much is explored, how the model can fail

`python -m tests.model` runs the small set, `--long` the large one too; see `docs/protocol.md`.
"""
