"""Predict the taxa on many photographs, and write the predictions in several formats: `linnaeus predict`."""
