//! Reading safetensors files whose content nobody has vouched for.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::FileError;

/// Bytes in front of the header, which hold its length.
const LENGTH_BYTES: usize = 8;

/// Longest header that the format allows.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// A safetensors file in memory, with a header that has been checked against its length.
pub struct TensorFile {
    path: PathBuf,
    bytes: Vec<u8>,
    data_start: usize,
    metadata: Metadata,
}

impl TensorFile {
    /// Reads and checks `path`.
    ///
    /// # Errors
    /// [`FileError`]: unreadable, truncated, malformed or self-contradictory.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let bytes = fs::read(path).map_err(|source| FileError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::from_bytes(path, bytes)
    }

    /// As [`TensorFile::open`], for content that is in memory already; `path` is for messages.
    ///
    /// # Errors
    /// As [`TensorFile::open`].
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, FileError> {
        let path = path.to_owned();
        let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
            return Err(FileError::TooShort {
                found: bytes.len(),
                path,
            });
        };
        let header_bytes = u64::from_le_bytes(*length);
        let header = usize::try_from(header_bytes)
            .ok()
            .and_then(|length| rest.get(..length));
        let Some(header) = header else {
            return Err(FileError::HeaderBeyondEnd {
                path,
                header_bytes,
                available: rest.len(),
            });
        };
        if header.len() > MAX_HEADER_BYTES {
            return Err(FileError::HeaderTooLarge {
                path,
                header_bytes,
                limit: MAX_HEADER_BYTES,
            });
        }
        // `SafeTensors::deserialize` adds up untrusted offsets and can overflow; `Metadata` alone
        // checks that tensors are contiguous and as long as their shapes say.
        let metadata = match serde_json::from_slice::<Metadata>(header) {
            Ok(metadata) => metadata,
            Err(source) => return Err(FileError::Header { path, source }),
        };
        let found = rest.len() - header.len();
        if metadata.data_len() != found {
            return Err(FileError::DataLength {
                path,
                expected: metadata.data_len(),
                found,
            });
        }
        Ok(Self {
            data_start: LENGTH_BYTES + header.len(),
            path,
            metadata,
            bytes,
        })
    }

    /// Where the file came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensor `name`, if the file has it.
    pub fn tensor<'a>(&'a self, name: &'a str) -> Option<Tensor<'a>> {
        let info = self.metadata.info(name)?;
        let (start, end) = info.data_offsets;
        Some(Tensor {
            file: self,
            name,
            info,
            data: &self.bytes[self.data_start + start..self.data_start + end],
        })
    }

    /// The tensor `name`.
    ///
    /// # Errors
    /// [`FileError::MissingTensor`]
    pub fn require<'a>(&'a self, name: &'a str) -> Result<Tensor<'a>, FileError> {
        self.tensor(name).ok_or_else(|| self.missing(name))
    }

    /// The error that says that none of the tensors in `name` (a phrase) is there.
    pub fn missing(&self, name: &str) -> FileError {
        let mut found = self.metadata.offset_keys();
        found.sort();
        FileError::MissingTensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            found,
        }
    }

    /// The value of `key` in `__metadata__`.
    ///
    /// # Errors
    /// [`FileError::MissingMetadata`]
    pub fn note(&self, key: &'static str) -> Result<&str, FileError> {
        self.metadata
            .metadata()
            .as_ref()
            .and_then(|notes| notes.get(key))
            .map(String::as_str)
            .ok_or_else(|| FileError::MissingMetadata {
                path: self.path.clone(),
                key,
            })
    }

    /// The value of `key` in `__metadata__`, parsed.
    ///
    /// # Errors
    /// [`FileError::MissingMetadata`], [`FileError::WrongMetadata`]
    pub fn parsed_note<T: std::str::FromStr>(
        &self,
        key: &'static str,
        expected: &str,
    ) -> Result<T, FileError> {
        let found = self.note(key)?;
        found.parse().map_err(|_| FileError::WrongMetadata {
            path: self.path.clone(),
            key,
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    }
}

/// One tensor of a [`TensorFile`].
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    file: &'a TensorFile,
    name: &'a str,
    info: &'a TensorInfo,
    data: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.info.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &'a [usize] {
        &self.info.shape
    }

    /// Elements as they lie in the file: little-endian, row-major.
    pub fn bytes(&self) -> &'a [u8] {
        self.data
    }

    /// The extents, if there are `N` of them.
    ///
    /// # Errors
    /// [`FileError::WrongShape`], which shows `expected`.
    pub fn extents<const N: usize>(&self, expected: &str) -> Result<[usize; N], FileError> {
        <[usize; N]>::try_from(self.shape()).map_err(|_| self.wrong_shape(expected))
    }

    /// Checks the whole shape.
    ///
    /// # Errors
    /// [`FileError::WrongShape`], which shows `names` and the extents that they stand for.
    pub fn require_shape(&self, names: &str, extents: &[usize]) -> Result<(), FileError> {
        if self.shape() == extents {
            Ok(())
        } else {
            Err(self.wrong_shape(&format!("{names} = {extents:?}")))
        }
    }

    /// Checks the element type.
    ///
    /// # Errors
    /// [`FileError::WrongDtype`]
    pub fn require_dtype(&self, dtype: Dtype, name: &'static str) -> Result<(), FileError> {
        if self.dtype() == dtype {
            Ok(())
        } else {
            Err(self.wrong_dtype(name))
        }
    }

    /// Elements of an I32 tensor.
    ///
    /// # Errors
    /// [`FileError::WrongDtype`]
    pub fn to_i32(self) -> Result<Vec<i32>, FileError> {
        self.require_dtype(Dtype::I32, "I32")?;
        Ok(decode(self.data, i32::from_le_bytes))
    }

    /// Elements of an F32 tensor.
    ///
    /// # Errors
    /// [`FileError::WrongDtype`]
    pub fn to_f32(self) -> Result<Vec<f32>, FileError> {
        self.require_dtype(Dtype::F32, "F32")?;
        Ok(decode(self.data, f32::from_le_bytes))
    }

    /// Elements of a U32 tensor, or of an I32 tensor without negative elements.
    ///
    /// # Errors
    /// [`FileError::WrongDtype`], [`FileError::WrongValue`]
    pub fn to_u32(self) -> Result<Vec<u32>, FileError> {
        match self.dtype() {
            Dtype::U32 => Ok(decode(self.data, u32::from_le_bytes)),
            Dtype::I32 => self
                .to_i32()?
                .into_iter()
                .enumerate()
                .map(|(index, value)| {
                    u32::try_from(value)
                        .map_err(|_| self.wrong_value("no negative element", index, value))
                })
                .collect(),
            _ => Err(self.wrong_dtype("U32 or I32")),
        }
    }

    /// The error that says which element types would do.
    pub fn wrong_dtype(&self, expected: &'static str) -> FileError {
        FileError::WrongDtype {
            path: self.file.path.clone(),
            tensor: self.name.to_owned(),
            expected,
            found: self.dtype(),
        }
    }

    /// The error that says which shape would do.
    pub fn wrong_shape(&self, expected: &str) -> FileError {
        FileError::WrongShape {
            path: self.file.path.clone(),
            tensor: self.name.to_owned(),
            expected: expected.to_owned(),
            found: self.shape().to_vec(),
        }
    }

    /// The error that says what is wrong with element `index`.
    pub fn wrong_value(
        &self,
        expected: impl Into<String>,
        index: usize,
        value: impl std::fmt::Display,
    ) -> FileError {
        FileError::WrongValue {
            path: self.file.path.clone(),
            tensor: self.name.to_owned(),
            expected: expected.into(),
            found: format!("{value} at index {index}"),
        }
    }
}

/// Little-endian elements of `N` bytes. The header was checked: there is no remainder.
pub fn decode<const N: usize, T>(bytes: &[u8], element: fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .as_chunks::<N>()
        .0
        .iter()
        .map(|&bytes| element(bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Result<TensorFile, FileError> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        TensorFile::from_bytes(Path::new("test"), bytes)
    }

    #[test]
    fn reads_what_it_should() {
        let file = file(
            r#"{"__metadata__":{"format":"mxfp8"},"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#,
            &[1, 0, 0, 0, 255, 255, 255, 255],
        )
        .unwrap();
        let a = file.require("a").unwrap();
        assert_eq!(a.to_i32().unwrap(), [1, -1]);
        assert_eq!(file.note("format").unwrap(), "mxfp8");
        let error = a.to_u32().unwrap_err().to_string();
        assert!(
            error.contains("`a`") && error.contains("-1 at index 1"),
            "{error}"
        );
        let error = a.to_f32().unwrap_err().to_string();
        assert!(error.contains("must be F32, found I32"), "{error}");
        let error = file.require("b").err().unwrap().to_string();
        assert!(error.contains("no tensor `b`; it has `a`"), "{error}");
    }

    #[test]
    fn says_how_a_file_is_truncated() {
        assert!(matches!(
            TensorFile::from_bytes(Path::new("x"), vec![1; 7]),
            Err(FileError::TooShort { found: 7, .. })
        ));
        let mut bytes = 1000u64.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        assert!(matches!(
            TensorFile::from_bytes(Path::new("x"), bytes),
            Err(FileError::HeaderBeyondEnd {
                header_bytes: 1000,
                available: 2,
                ..
            })
        ));
        assert!(matches!(
            TensorFile::from_bytes(Path::new("x"), vec![0xFF; 64]),
            Err(FileError::HeaderBeyondEnd {
                header_bytes: u64::MAX,
                ..
            })
        ));
        let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        for length in [0, 3, 5] {
            assert!(matches!(
                file(header, &vec![0; length]),
                Err(FileError::DataLength { expected: 4, found, .. }) if found == length
            ));
        }
    }

    #[test]
    fn refuses_headers_that_contradict_themselves() {
        for header in [
            "",
            "{",
            "[]",
            "{}x",
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,5]}}"#,
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#,
            r#"{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}"#,
            r#"{"a":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}}"#,
            r#"{"a":{"dtype":"U8","shape":[4]}}"#,
            r#"{"__metadata__":{"version":1}}"#,
        ] {
            assert!(
                matches!(file(header, &[0; 4]), Err(FileError::Header { .. })),
                "{header}"
            );
        }
    }

    #[test]
    fn survives_sizes_near_the_end_of_the_address_space() {
        // Eight tensors of 2^61 - 1 bytes: every size is valid by itself, and the sum is within a
        // few bytes of 2^64.
        let each = (1u64 << 61) - 1;
        let tensors: Vec<_> = (0..8)
            .map(|i| {
                let (start, end) = (i * each, (i + 1) * each);
                format!(
                    r#""t{i}":{{"dtype":"U8","shape":[{each}],"data_offsets":[{start},{end}]}}"#
                )
            })
            .collect();
        assert!(matches!(
            file(&format!("{{{}}}", tensors.join(",")), &[]),
            Err(FileError::DataLength { found: 0, .. })
        ));
    }
}
