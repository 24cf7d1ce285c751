"""The command `linnaeus calibrate`: answers with a stated precision, from labelled photographs."""
