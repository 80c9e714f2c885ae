"""Package dnnapi.v1: ClassifierService, images in and labels out."""
