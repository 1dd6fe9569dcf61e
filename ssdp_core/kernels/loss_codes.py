"""Small integers by which compiled kernels know a loss; `ssdp_core.losses` gives them meaning."""

LOGISTIC = 0
SQUARED = 1
HUBER = 2
SMOOTH_HINGE = 3
HINGE = 4
ABSOLUTE = 5
PINBALL = 6
MULTINOMIAL = 7
