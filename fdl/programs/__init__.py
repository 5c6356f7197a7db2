"""What is known of the arguments of a program, and the classes with which it declares them."""
