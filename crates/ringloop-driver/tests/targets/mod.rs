//! The bodies of the fuzz targets, which are also run by the tests.

pub(crate) mod operations;
