//! Writes an object piece by piece.

use super::{Error, Writer};
use crate::id::{ContentPrefix, ObjectId};
use crate::object::{self, ObjectPart};
use crate::splitter::{Splitter, SplitterAlgorithm};

/// Data that becomes an object, cut into contents.
pub struct ObjectWriter {
    algorithm: SplitterAlgorithm,
    splitter: Splitter,
    prefix: Option<ContentPrefix>,
    /// Lists are compressed, data is not: Velero configures it so.
    compress: bool,
    buffer: Vec<u8>,
    parts: Vec<ObjectPart>,
    length: u64,
}

/// An object that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenObject {
    /// Name.
    pub object: ObjectId,
    /// Number of bytes.
    pub length: u64,
}

impl ObjectWriter {
    pub(super) fn new(algorithm: SplitterAlgorithm, prefix: Option<ContentPrefix>) -> Self {
        Self {
            algorithm,
            splitter: Splitter::new(algorithm),
            prefix,
            compress: false,
            buffer: Vec::new(),
            parts: Vec::new(),
            length: 0,
        }
    }

    /// Adds data.
    pub async fn write(&mut self, writer: &mut Writer<'_>, data: &[u8]) -> Result<(), Error> {
        let mut rest = data;
        while let Some(cut) = self.splitter.next_cut(rest) {
            let (head, tail) = rest.split_at_checked(cut).unwrap_or((rest, &[]));
            self.buffer.extend_from_slice(head);
            self.end_content(writer).await?;
            rest = tail;
        }
        self.buffer.extend_from_slice(rest);
        Ok(())
    }

    /// Writes the last content and, if there are several, their list.
    pub async fn finish(mut self, writer: &mut Writer<'_>) -> Result<WrittenObject, Error> {
        if !self.buffer.is_empty() || self.parts.is_empty() {
            self.end_content(writer).await?;
        }
        let length = self.length;
        if let [only] = self.parts.as_slice() {
            return Ok(WrittenObject { object: only.object, length });
        }
        let json = object::encode_list(&self.parts).map_err(Error::List)?;
        let prefix = self.prefix.unwrap_or(ContentPrefix::INDIRECT);
        let mut list = Self { compress: true, ..Self::new(self.algorithm, Some(prefix)) };
        // A list of more than one content has a list itself.
        Box::pin(list.write(writer, &json)).await?;
        let list = Box::pin(list.finish(writer)).await?;
        let object = ObjectId::indirect(list.object).ok_or(Error::TooDeep)?;
        Ok(WrittenObject { object, length })
    }

    async fn end_content(&mut self, writer: &mut Writer<'_>) -> Result<(), Error> {
        let plain = std::mem::take(&mut self.buffer);
        let length = u64::try_from(plain.len()).unwrap_or(u64::MAX);
        let content = writer.write_content(self.prefix, plain, self.compress).await?;
        let object = ObjectId::direct(content);
        self.parts.push(ObjectPart { start: self.length, length, object });
        self.length = self.length.saturating_add(length);
        Ok(())
    }
}
