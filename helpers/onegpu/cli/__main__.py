"""``python -m onegpu.cli``."""

from onegpu.cli.app import main

if __name__ == "__main__":
    main()
