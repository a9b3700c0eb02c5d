"""Methods that others published, one file per family; nothing of the paper depends on them."""
