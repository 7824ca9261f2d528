"""Preprocessing: from a decoded image to the patches that an encoder reads, as the model's reference processor does.

encoder_input       the patches of an image or of a tile
image_parameters    what the keys of a projector file say
pixel_operations    resizing, padding, normalizing
processors          which kind of processor each projector type has; `make_image_processor`

The other files have one kind of processor each.
"""
