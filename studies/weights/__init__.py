"""Do ranks end with the weights that their scheme's definition gives? See the README beside this."""
