//! What can be wrong with data: each fault names the file, what was found and what was expected.

use std::io;
use std::path::PathBuf;

/// A data set or an image that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file system refused.
    #[error("{}: cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },

    /// A gzip stream is cut short, fails its checksum, or is followed by something else.
    #[error(
        "{}: found a damaged gzip stream ({source}), expected a whole one; download the file again",
        path.display()
    )]
    Gzip { path: PathBuf, source: io::Error },

    /// An IDX file's content contradicts its format, or is not what annulet trains on.
    #[error("{}: {what}: found {found}, expected {expected}", path.display())]
    Idx { path: PathBuf, what: &'static str, found: String, expected: String },

    /// Images and labels do not belong together.
    #[error(
        "{}: found {image_count} images, expected {label_count}, one for each label of {}",
        images.display(),
        labels.display()
    )]
    Counts { images: PathBuf, image_count: usize, labels: PathBuf, label_count: usize },

    /// `--dataset` names a folder that is not there.
    #[error(
        "--dataset {}: found no such folder, expected one with the four IDX files of a data set, \
         or fashion-mnist, mnist or synthetic",
        folder.display()
    )]
    NoFolder { folder: PathBuf },

    /// A folder that was named, or that holds a part of a data set, lacks files.
    #[error(
        "{}: found {found} of the four files of a data set, expected also {} (plain or .gz); \
         put them there, or choose another folder with --dataset DIR",
        folder.display(),
        missing.join(", ")
    )]
    MissingFiles { folder: PathBuf, found: usize, missing: Vec<&'static str> },

    /// A data set asked for by name is in none of its usual places.
    #[error("--dataset {name}: found none in {}; {next}", list(searched))]
    NotFound {
        name: &'static str,
        searched: Vec<PathBuf>,
        /// What to do about it.
        next: &'static str,
    },

    /// `--dataset` was given without a value.
    #[error(
        "--dataset: found an empty value, expected a folder, fashion-mnist, mnist or synthetic"
    )]
    EmptyChoice,

    /// `--train-limit` or `--test-limit` is 0.
    #[error("{flag} 0: expected at least 1 sample; leave the flag out to use all")]
    EmptyLimit { flag: &'static str },

    /// Not a PNG, or a damaged one.
    #[error(
        "{}: found no sound PNG image ({source}), expected one; convert the picture to PNG",
        path.display()
    )]
    Png { path: PathBuf, source: png::DecodingError },

    /// A PNG's palette is not made of colours of three bytes.
    #[error(
        "{}: found a palette of {length} bytes, expected 3 for each colour; \
         convert the picture again",
        path.display()
    )]
    Palette { path: PathBuf, length: usize },

    /// A picture too large to be read.
    #[error(
        "{}: found an image of {width}x{height}, expected at most {pixels_max} pixels; \
         scale it down, the network sees 28x28",
        path.display()
    )]
    ImageSize { path: PathBuf, width: u32, height: u32, pixels_max: u64 },
}

/// Folders for a sentence.
pub(super) fn list(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}
