"""Read Camera Trap Data Packages (data=camtrap_dp)."""
