"""Read the files of the iNaturalist competitions (data=inat_competition) and the iNaturalist Open Data (data=inat_open_data)."""
