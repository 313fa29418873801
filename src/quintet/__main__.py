"""`python -m quintet`."""

from quintet.cli.main import run

if __name__ == "__main__":
    run()
