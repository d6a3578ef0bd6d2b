//! Attributes of operations.

use std::collections::BTreeMap;
use std::fmt;

use super::{DType, OpError, Operation};

/// What an attribute can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeKind {
    /// A flag.
    Bool,
    /// A whole number, not negative.
    Int,
    /// A name.
    Text,
    /// An element type.
    DType,
}

impl fmt::Display for AttributeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AttributeKind::Bool => "a flag",
            AttributeKind::Int => "a whole number from 0",
            AttributeKind::Text => "a text",
            AttributeKind::DType => "an element type",
        })
    }
}

/// An attribute that an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub name: &'static str,
    /// What it can be.
    pub kind: AttributeKind,
    /// Whether it must be given.
    pub required: bool,
}

impl Attribute {
    pub(super) const fn required(name: &'static str, kind: AttributeKind) -> Self {
        Self {
            name,
            kind,
            required: true,
        }
    }

    pub(super) const fn optional(name: &'static str, kind: AttributeKind) -> Self {
        Self {
            name,
            kind,
            required: false,
        }
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttributeValue {
    /// A flag.
    Bool(bool),
    /// A whole number.
    Int(u64),
    /// A name.
    Text(String),
    /// An element type.
    DType(DType),
}

impl AttributeValue {
    fn kind(&self) -> AttributeKind {
        match self {
            AttributeValue::Bool(_) => AttributeKind::Bool,
            AttributeValue::Int(_) => AttributeKind::Int,
            AttributeValue::Text(_) => AttributeKind::Text,
            AttributeValue::DType(_) => AttributeKind::DType,
        }
    }
}

impl fmt::Display for AttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttributeValue::Bool(flag) => write!(f, "{flag}"),
            AttributeValue::Int(number) => write!(f, "{number}"),
            AttributeValue::Text(text) => write!(f, "{text:?}"),
            AttributeValue::DType(dtype) => write!(f, "{dtype}"),
        }
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        Self::Int(number)
    }
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<DType> for AttributeValue {
    fn from(dtype: DType) -> Self {
        Self::DType(dtype)
    }
}

/// The attributes of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    values: BTreeMap<String, AttributeValue>,
}

impl Attributes {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// These and one more. Of two of the same name the later one counts.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<AttributeValue>) -> Self {
        self.values.insert(name.to_owned(), value.into());
        self
    }

    /// The value of an attribute, if it was given.
    pub fn get(&self, name: &str) -> Option<&AttributeValue> {
        self.values.get(name)
    }

    /// Demands that the operation has every attribute given, that each is of its kind, and that none is
    /// missing.
    pub(super) fn check(&self, operation: &Operation) -> Result<(), OpError> {
        let known = operation.attributes();
        for (name, value) in &self.values {
            let Some(attribute) = known.iter().find(|attribute| attribute.name == name) else {
                return Err(OpError::UnknownAttribute {
                    operation: operation.name(),
                    attribute: name.clone(),
                    known: known.iter().map(|attribute| attribute.name).collect(),
                });
            };
            if value.kind() != attribute.kind {
                return Err(OpError::Attribute {
                    operation: operation.name(),
                    attribute: attribute.name,
                    expected: attribute.kind.to_string(),
                    found: value.to_string(),
                });
            }
        }
        let missing = known
            .iter()
            .find(|attribute| attribute.required && self.get(attribute.name).is_none());
        match missing {
            Some(attribute) => Err(OpError::MissingAttribute {
                operation: operation.name(),
                attribute: attribute.name,
                kind: attribute.kind,
            }),
            None => Ok(()),
        }
    }

    // What follows is for attributes that have passed the check.

    /// An element type that was given.
    pub(super) fn dtype(&self, name: &'static str) -> DType {
        let dtype = self.optional_dtype(name);
        dtype.unwrap_or_else(|| unreachable!("{name} was not given"))
    }

    /// An element type, if it was given.
    pub(super) fn optional_dtype(&self, name: &'static str) -> Option<DType> {
        match self.get(name) {
            Some(AttributeValue::DType(dtype)) => Some(*dtype),
            _ => None,
        }
    }

    /// A flag, off unless it was given.
    pub(super) fn flag(&self, name: &'static str) -> bool {
        matches!(self.get(name), Some(AttributeValue::Bool(true)))
    }

    /// A number that was given.
    pub(super) fn int(&self, name: &'static str) -> usize {
        let number = self.optional_int(name);
        number.unwrap_or_else(|| unreachable!("{name} was not given"))
    }

    /// A number, if it was given; [`usize::MAX`] for one that is beyond.
    pub(super) fn optional_int(&self, name: &'static str) -> Option<usize> {
        match self.get(name) {
            Some(AttributeValue::Int(number)) => {
                Some(usize::try_from(*number).unwrap_or(usize::MAX))
            }
            _ => None,
        }
    }

    /// A name, if it was given.
    pub(super) fn text(&self, name: &'static str) -> Option<&str> {
        match self.get(name) {
            Some(AttributeValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Demands a GPU as the target; that the emulator stands in for one is the device's affair.
    pub(super) fn check_target(&self, operation: &Operation) -> Result<(), OpError> {
        match self.text("target") {
            Some(target) if target != "gpu" && target != "cuda" => Err(OpError::Attribute {
                operation: operation.name(),
                attribute: "target",
                expected: "\"gpu\" or \"cuda\"".to_owned(),
                found: format!("{target:?}"),
            }),
            _ => Ok(()),
        }
    }
}
