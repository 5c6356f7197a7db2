"""argv -> exit code."""


def main() -> int:
    return 0
