"""Building libtorch from PyTorch's sources, for exactly the GPU architectures one has.

``plan`` says what will be done, as a value; ``tools`` and ``back_end`` find out where it can be
done; ``execute`` does it, and continues what an earlier call has begun.
"""
