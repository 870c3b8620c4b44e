"""Tests of bytes: the disk, segments, buckets, descriptors."""
