//! The kernel attribute and its companions for cuda_std
