"""gpuring.h: a program in C at one end of a ring, Python at the other (puppet.c and puppet.py)."""
