//! The file: named tensors with metadata as safetensors, under a hash over all of it.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sha2::{Digest, Sha256};

use super::CheckpointError;
use crate::model::layout::{PARAMETERS, TENSORS, TensorSpec};
use crate::train::metrics::hex;

/// Version of the metadata; a reader refuses another one.
pub const FORMAT_VERSION: &str = "1";

/// The metadata that holds the hash over everything else.
const DIGEST_KEY: &str = "content_sha256";

/// The largest file that is read: some ten times what AdamW needs.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Named tensors as little-endian bytes, in the order in which they are written.
pub type NamedTensors = Vec<(String, &'static TensorSpec, Vec<u8>)>;

pub fn parameter_tensors(prefix: &str, vector: &[f32]) -> NamedTensors {
    let bytes = |tensor: &TensorSpec| {
        vector[tensor.range()].iter().flat_map(|value| value.to_le_bytes()).collect()
    };
    TENSORS.iter().map(|t| (format!("{prefix}{}", t.name), t, bytes(t))).collect()
}

pub fn encode(mut tensors: NamedTensors, mut metadata: HashMap<String, String>) -> Vec<u8> {
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let named = tensors.iter().map(|(name, _, bytes)| (&**name, &**bytes));
    let digest = content_sha256(named, &metadata);
    metadata.insert(DIGEST_KEY.into(), digest);
    let views = tensors.iter().map(|(name, tensor, bytes)| {
        let view = TensorView::new(Dtype::F32, tensor.shape.to_vec(), bytes)
            .expect("the bytes were made from the shape");
        (name, view)
    });
    safetensors::serialize(views, Some(metadata)).expect("names, shapes and bytes agree")
}

/// Over the tensors in the order of their names and all other metadata in the order of its keys.
fn content_sha256<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a [u8])>,
    metadata: &HashMap<String, String>,
) -> String {
    let mut hasher = Sha256::new();
    let mut field = |name: &str, bytes: &[u8]| {
        hasher.update((name.len() as u64).to_le_bytes());
        hasher.update(name);
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for (name, bytes) in tensors {
        field(name, bytes);
    }
    let mut entries: Vec<_> = metadata.iter().filter(|(key, _)| *key != DIGEST_KEY).collect();
    entries.sort();
    for (key, value) in entries {
        field(key, value.as_bytes());
    }
    hex(&hasher.finalize())
}

/// `f32`s by their bits, so that reading gives back exactly what was written.
pub fn encode_bits(values: &[f32]) -> String {
    values.iter().map(|v| format!("{:08x}", v.to_bits())).collect::<Vec<_>>().join(" ")
}

pub fn decode_bits<const N: usize>(text: &str) -> Option<[f32; N]> {
    let values: Option<Vec<f32>> = text
        .split(' ')
        .map(|word| u32::from_str_radix(word, 16).ok().map(f32::from_bits))
        .collect();
    values?.try_into().ok()
}

pub fn read_file(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let io = |source| CheckpointError::Io { path: path.to_owned(), source };
    let bytes = fs::metadata(path).map_err(io)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(CheckpointError::Content {
            path: path.to_owned(),
            found: format!("{bytes} bytes"),
            expected: format!("at most {FILE_BYTES_MAX}"),
        });
    }
    fs::read(path).map_err(io)
}

/// A file whose hash and format were checked.
pub struct DecodedFile<'a> {
    path: &'a Path,
    tensors: SafeTensors<'a>,
    metadata: HashMap<String, String>,
}

impl<'a> DecodedFile<'a> {
    pub fn parse(path: &'a Path, bytes: &'a [u8]) -> Result<DecodedFile<'a>, CheckpointError> {
        let format = |source| CheckpointError::Format { path: path.to_owned(), source };
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(format)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let tensors = SafeTensors::deserialize(bytes).map_err(format)?;
        let file = DecodedFile { path, tensors, metadata };
        let version = file.metadata("annulet_format")?;
        if version != FORMAT_VERSION {
            return Err(file.content(format!("format version {version}"), FORMAT_VERSION));
        }
        let mut views = file.tensors.tensors();
        views.sort_by(|a, b| a.0.cmp(&b.0));
        let named = views.iter().map(|(name, view)| (&**name, view.data()));
        let digest = content_sha256(named, &file.metadata);
        if digest != file.metadata(DIGEST_KEY)? {
            return Err(
                file.content(format!("content with SHA-256 {digest}"), file.metadata(DIGEST_KEY)?)
            );
        }
        Ok(file)
    }

    pub fn content(&self, found: String, expected: &str) -> CheckpointError {
        CheckpointError::Content {
            path: self.path.to_owned(),
            found,
            expected: expected.to_owned(),
        }
    }

    pub fn metadata(&self, key: &str) -> Result<&str, CheckpointError> {
        self.metadata
            .get(key)
            .map(String::as_str)
            .ok_or_else(|| self.content(format!("no metadata '{key}'"), "annulet's metadata"))
    }

    pub fn parsed<T>(
        &self,
        key: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, CheckpointError> {
        let text = self.metadata(key)?;
        parse(text).ok_or_else(|| self.content(format!("{key} '{text}'"), expected))
    }

    /// The flat vector whose tensors are called `<prefix><name>`.
    pub fn parameter_vector(&self, prefix: &str) -> Result<Vec<f32>, CheckpointError> {
        let mut vector = Vec::with_capacity(PARAMETERS);
        for spec in &TENSORS {
            let name = format!("{prefix}{}", spec.name);
            let view = self
                .tensors
                .tensor(&name)
                .map_err(|_| self.content(format!("no tensor '{name}'"), "all of LeNet's"))?;
            if view.dtype() != Dtype::F32 || view.shape() != spec.shape {
                return Err(self.content(
                    format!("'{name}' as {:?} {:?}", view.dtype(), view.shape()),
                    &format!("F32 {:?}", spec.shape),
                ));
            }
            vector.extend(
                view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            );
        }
        Ok(vector)
    }
}
