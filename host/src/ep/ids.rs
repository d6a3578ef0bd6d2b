//! What can be wrong with expert ids, looked for on the host.

use thiserror::Error;

/// An id that the kernels would pass over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IdError {
    /// Neither an expert nor −1.
    #[error("token {token}, position {position}: there is no expert {id} among {experts}")]
    NoSuchExpert {
        /// The token.
        token: usize,
        /// Position among the token's ids.
        position: usize,
        /// The id.
        id: i32,
        /// Experts.
        experts: usize,
    },

    /// A token names an expert twice.
    #[error("token {token} names expert {id} at positions {first} and {position}")]
    Duplicate {
        /// The token.
        token: usize,
        /// The expert.
        id: i32,
        /// Where it is named first.
        first: usize,
        /// Where it is named again.
        position: usize,
    },
}

/// Looks for ids that a dispatch would treat as nobody although they are not −1: those of no expert, and those
/// that a token names again. `ids` is `[tokens, top_k]`.
///
/// ```
/// use tokenyard::ep::check_ids;
/// assert!(check_ids(&[0, 3, -1, -1, 2, 1], 2, 4).is_ok());
/// let error = check_ids(&[0, 3, 2, 2], 2, 4).unwrap_err();
/// assert_eq!(error.to_string(), "token 1 names expert 2 at positions 0 and 1");
/// ```
///
/// # Errors
///
/// The first such id.
pub fn check_ids(ids: &[i32], top_k: usize, experts: usize) -> Result<(), IdError> {
    for (token, ids) in ids.chunks(top_k.max(1)).enumerate() {
        for (position, &id) in ids.iter().enumerate() {
            if id == -1 {
                continue;
            }
            if usize::try_from(id).map_or(true, |id| id >= experts) {
                return Err(IdError::NoSuchExpert {
                    token,
                    position,
                    id,
                    experts,
                });
            }
            if let Some(first) = ids[..position].iter().position(|&other| other == id) {
                return Err(IdError::Duplicate {
                    token,
                    id,
                    first,
                    position,
                });
            }
        }
    }
    Ok(())
}
