"""Write a trained classifier to a folder for use elsewhere, as a bundle or in a format of other programs: `linnaeus export`."""
