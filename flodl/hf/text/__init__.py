"""How texts become ids: tokenizer files of all kinds, their reading, padding and cutting."""
