"""What a program can be told: parameters, the JSON document that lists them, and their parser."""
