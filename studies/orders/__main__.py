"""`python -m studies.orders`: what ideas on the order of gradients are worth."""

import sys

from studies.orders.order_findings import main

if __name__ == "__main__":
    main(sys.argv[1:])
