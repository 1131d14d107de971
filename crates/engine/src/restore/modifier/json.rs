//! JSON patches, applied atomically: all operations or none.

use json_patch::jsonptr::PointerBuf;
use json_patch::{
    AddOperation, CopyOperation, MoveOperation, PatchOperation, RemoveOperation, ReplaceOperation,
};
use serde::Deserialize;
use serde_json::Value;

use super::{InvalidModifiers, value};

/// Maximum number of bytes that a patch may copy within an object. Each copy may double the size of the next one.
const COPIED: usize = 16 << 20;
/// Maximum nesting depth of the result, so that traversing it stays safe.
const DEEPEST: usize = 128;

/// An operation as users write it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PatchDocument {
    #[serde(default)]
    operation: Option<String>,
    #[serde(default)]
    from: Option<String>,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    value: Option<String>,
}

/// A change.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// Condition: if it does not hold, nothing is changed.
    Test(Test),
    Change(PatchOperation),
}

/// A value that an object must have.
#[derive(Clone, Debug)]
pub(super) struct Test {
    path: PointerBuf,
    value: Value,
}

/// Why a patch does not apply.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// An operation is not possible at its path.
    #[error(transparent)]
    Change(#[from] json_patch::PatchError),
    /// The result would be larger than any object can be.
    #[error("the patch copies more than {COPIED} bytes")]
    TooLarge,
    /// The result would be nested too deeply.
    #[error("the patch leaves an object of more than {DEEPEST} levels")]
    TooDeep,
}

impl PatchDocument {
    pub(super) fn compile(self) -> Result<Operation, InvalidModifiers> {
        let operation = self.operation.unwrap_or_default();
        if operation.is_empty() {
            return Err(InvalidModifiers::NoOperation);
        }
        let path = self.path.unwrap_or_default();
        let value = self.value.unwrap_or_default();
        let pointer = || pointer(&path);
        let from = || self::pointer(self.from.as_deref().unwrap_or_default());
        let value = || self::value(&path, &value);
        let change = match operation.to_ascii_lowercase().as_str() {
            "test" => return Ok(Operation::Test(Test { path: pointer()?, value: value()? })),
            "add" => PatchOperation::Add(AddOperation { path: pointer()?, value: value()? }),
            "replace" => {
                PatchOperation::Replace(ReplaceOperation { path: pointer()?, value: value()? })
            }
            "remove" => PatchOperation::Remove(RemoveOperation { path: pointer()? }),
            "move" => PatchOperation::Move(MoveOperation { path: pointer()?, from: from()? }),
            "copy" => PatchOperation::Copy(CopyOperation { path: pointer()?, from: from()? }),
            _ => return Err(InvalidModifiers::Operation(operation)),
        };
        Ok(Operation::Change(change))
    }
}

/// Compiles a condition.
pub(super) fn test(path: &str, value: &str) -> Result<Test, InvalidModifiers> {
    Ok(Test { path: pointer(path)?, value: self::value(path, value)? })
}

impl Test {
    /// True if an object has the value. A missing value counts as `null`.
    pub(super) fn holds(&self, object: &Value) -> bool {
        let path = resolve_end_indices(&self.path, object, PathTarget::Existing);
        *object.pointer(path.as_str()).unwrap_or(&Value::Null) == self.value
    }
}

/// Applies all operations to an object, or none. A test that does not hold is not an error.
pub(super) fn apply(operations: &[Operation], object: &mut Value) -> Result<(), PatchError> {
    let mut changed = object.clone();
    let mut copied = 0;
    // An object that is deeper already must not become deeper still.
    let deepest = DEEPEST.max(levels(object));
    for operation in operations {
        match operation {
            Operation::Test(test) if test.holds(&changed) => {}
            Operation::Test(_) => return Ok(()),
            Operation::Change(change) => {
                let change = &with_front_indices(change, &changed);
                if let PatchOperation::Copy(copy) = change {
                    copied += changed.pointer(copy.from.as_str()).map_or(0, size);
                    if copied > COPIED {
                        return Err(PatchError::TooLarge);
                    }
                }
                json_patch::patch_unsafe(&mut changed, std::slice::from_ref(change))?;
                if is_deeper(&changed, deepest) {
                    return Err(PatchError::TooDeep);
                }
            }
        }
    }
    *object = changed;
    Ok(())
}

/// Meaning of the last part of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathTarget {
    /// An existing element.
    Existing,
    /// The position of a new element, which may be after the last one.
    New,
}

/// An operation whose list indices count from the front. Negative indices, such as `-1` for the last element, are not
/// part of the standard, but Velero's library accepts them.
fn with_front_indices(change: &PatchOperation, object: &Value) -> PatchOperation {
    use PatchOperation::{Add, Copy, Move, Remove, Replace, Test};
    let existing = |path: &PointerBuf| resolve_end_indices(path, object, PathTarget::Existing);
    let new = |path: &PointerBuf| resolve_end_indices(path, object, PathTarget::New);
    match change.clone() {
        Add(one) => Add(AddOperation { path: new(&one.path), ..one }),
        Remove(one) => Remove(RemoveOperation { path: existing(&one.path) }),
        Replace(one) => Replace(ReplaceOperation { path: existing(&one.path), ..one }),
        Move(one) => Move(MoveOperation { from: existing(&one.from), path: new(&one.path) }),
        Copy(one) => Copy(CopyOperation { from: existing(&one.from), path: new(&one.path) }),
        Test(one) => Test(one),
    }
}

/// A path with indices that count from the front. One that is out of range stays, and then causes an error.
fn resolve_end_indices(path: &PointerBuf, object: &Value, end: PathTarget) -> PointerBuf {
    if !path.as_str().contains("/-") {
        return path.clone();
    }
    let (mut found, mut at) = (PointerBuf::root(), Some(object));
    let mut tokens = path.tokens().peekable();
    while let Some(token) = tokens.next() {
        let decoded = token.decoded();
        let is_new = end == PathTarget::New && tokens.peek().is_none();
        let from_the_end = decoded.strip_prefix('-').and_then(|back| back.parse::<usize>().ok());
        let index = match (at, from_the_end) {
            (Some(Value::Array(list)), Some(back)) if back > 0 => {
                (list.len() + usize::from(is_new)).checked_sub(back)
            }
            _ => None,
        };
        let name = index.map_or_else(|| decoded.to_string(), |index| index.to_string());
        at = match at {
            Some(Value::Array(list)) => name.parse().ok().and_then(|at: usize| list.get(at)),
            Some(Value::Object(fields)) => fields.get(&name),
            _ => None,
        };
        found.push_back(name.as_str());
    }
    found
}

/// Nesting depth of a value.
fn levels(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(levels).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(levels).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Approximate size of a value in bytes.
fn size(value: &Value) -> usize {
    const EACH: usize = 8;
    EACH + match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(size).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + size(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        _ if levels == 0 => true,
        Value::Array(list) => list.iter().any(|value| is_deeper(value, levels - 1)),
        Value::Object(fields) => fields.values().any(|value| is_deeper(value, levels - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn pointer(path: &str) -> Result<PointerBuf, InvalidModifiers> {
    if path.is_empty() {
        return Err(InvalidModifiers::NoPath);
    }
    PointerBuf::parse(path).map_err(|_| InvalidModifiers::Path(path.to_owned()))
}

fn value(path: &str, text: &str) -> Result<Value, InvalidModifiers> {
    value::read(text).map_err(|source| InvalidModifiers::Value { path: path.to_owned(), source })
}
