//! Reads an object part by part.

use super::{Error, Repository};
use crate::compression;
use crate::id::ObjectId;
use crate::object::{self, ObjectPart};

/// Longest list of the parts of an object: enough for 50 TiB.
const MAX_LIST: u64 = 1 << 30;

/// Deepest nesting of lists in lists.
const MAX_DEPTH: usize = 8;

/// Longest object that was compressed as a whole.
const MAX_COMPRESSED: usize = 1 << 28;

/// Reads the data of an object from the front, a few MiB at a time.
pub struct ObjectReader<'a> {
    repository: &'a Repository,
    object: ObjectId,
    /// The parts that are not read yet, the next one last. Each is a content, or a list that has not been opened.
    remaining: Vec<PendingPart>,
    length: Option<u64>,
}

struct PendingPart {
    object: ObjectId,
    /// Length that the list above names. `None` for the object itself.
    length: Option<u64>,
    depth: usize,
}

impl<'a> ObjectReader<'a> {
    pub(super) async fn open(
        repository: &'a Repository,
        object: ObjectId,
    ) -> Result<ObjectReader<'a>, Error> {
        let mut reader = Self { repository, object, remaining: Vec::new(), length: None };
        match object.list() {
            None => reader.remaining.push(PendingPart { object, length: None, depth: 0 }),
            Some(list) => {
                let parts = reader.read_list(list, 0).await?;
                reader.length = Some(parts.iter().map(|part| part.length).sum());
                reader.push_parts(&parts, 1);
            }
        }
        Ok(reader)
    }

    /// Length of the object, if its list names it. That of an object of one content is known when it is read.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next bytes, which are never none. `None` at the end.
    pub async fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, Error> {
        while let Some(part) = self.remaining.pop() {
            if let Some(list) = part.object.list() {
                if part.depth >= MAX_DEPTH {
                    return Err(Error::TooDeep(self.object));
                }
                let parts = self.read_list(list, part.depth).await?;
                self.check_length(&part, parts.iter().map(|part| part.length).sum())?;
                self.push_parts(&parts, part.depth + 1);
                continue;
            }
            let data = self.read_direct(part.object).await?;
            self.check_length(&part, u64::try_from(data.len()).unwrap_or(u64::MAX))?;
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// The rest of the object, which may have no more than `max_length` bytes.
    pub async fn read_all(mut self, max_length: u64) -> Result<Vec<u8>, Error> {
        let mut data = Vec::new();
        while let Some(mut chunk) = self.next_chunk().await? {
            data.append(&mut chunk);
            if u64::try_from(data.len()).map_or(true, |length| length > max_length) {
                return Err(Error::TooLong { object: self.object, max_length });
            }
        }
        Ok(data)
    }

    fn push_parts(&mut self, parts: &[ObjectPart], depth: usize) {
        let pending = |part: &ObjectPart| PendingPart {
            object: part.object,
            length: Some(part.length),
            depth,
        };
        self.remaining.extend(parts.iter().rev().map(pending));
    }

    fn check_length(&self, part: &PendingPart, found: u64) -> Result<(), Error> {
        match part.length {
            Some(expected) if expected != found => {
                Err(Error::PartLength { object: self.object, expected, found })
            }
            _ => Ok(()),
        }
    }

    async fn read_list(&self, list: ObjectId, depth: usize) -> Result<Vec<ObjectPart>, Error> {
        if depth >= MAX_DEPTH {
            return Err(Error::TooDeep(self.object));
        }
        // The list may have a list itself: its ID is one level less deep, so that this ends.
        let reader = Box::pin(Self::open(self.repository, list)).await?;
        let json = Box::pin(reader.read_all(MAX_LIST)).await?;
        object::parse_list(&json).map_err(|source| Error::Object { object: self.object, source })
    }

    async fn read_direct(&self, object: ObjectId) -> Result<Vec<u8>, Error> {
        let data = self.repository.read_content(&object.content()).await?;
        if !object.is_compressed() {
            return Ok(data);
        }
        compression::decompress_object(&data, MAX_COMPRESSED)
            .map_err(|source| Error::Decompress { object, source })
    }
}
