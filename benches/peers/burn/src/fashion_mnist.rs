//! The training set of Fashion-MNIST, normalised once before any clock runs.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

/// Height and width of an image.
pub const IMAGE_SIDE: usize = 28;
const IMAGE_PIXELS: usize = IMAGE_SIDE * IMAGE_SIDE;
const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;

pub struct TrainingSet {
    /// (N, 28, 28), mean 0 and standard deviation 1 over the whole set.
    pixels: Vec<f32>,
    /// (N)
    labels: Vec<i32>,
}

impl TrainingSet {
    pub fn read(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let bytes = idx_payload(&folder.join("train-images-idx3-ubyte.gz"), IMAGES_MAGIC, 16)?;
        let labels = idx_payload(&folder.join("train-labels-idx1-ubyte.gz"), LABELS_MAGIC, 8)?;
        if labels.is_empty() || bytes.len() != labels.len() * IMAGE_PIXELS {
            return Err(format!(
                "{}: {} labels and {} pixels do not belong together",
                folder.display(),
                labels.len(),
                bytes.len()
            )
            .into());
        }
        let count = bytes.len() as f64;
        let mean = bytes.iter().map(|&b| f64::from(b)).sum::<f64>() / count;
        let variance = bytes.iter().map(|&b| (f64::from(b) - mean).powi(2)).sum::<f64>() / count;
        let deviation = variance.sqrt();
        Ok(TrainingSet {
            pixels: bytes.iter().map(|&b| ((f64::from(b) - mean) / deviation) as f32).collect(),
            labels: labels.into_iter().map(i32::from).collect(),
        })
    }

    /// Whole batches in file order, from the start again at the end of the set.
    pub fn batches(&self, batch: usize) -> impl Iterator<Item = (Vec<f32>, Vec<i32>)> {
        self.pixels
            .chunks_exact(batch * IMAGE_PIXELS)
            .zip(self.labels.chunks_exact(batch))
            .map(|(pixels, labels)| (pixels.to_vec(), labels.to_vec()))
            .cycle()
    }
}

/// The bytes after the header of a gzip IDX file.
fn idx_payload(path: &Path, magic: u32, header: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let name = path.display();
    let file = File::open(path).map_err(|error| format!("{name}: {error}"))?;
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).map_err(|error| format!("{name}: {error}"))?;
    if bytes.len() < header || bytes[..4] != magic.to_be_bytes() {
        return Err(format!("{name}: not the expected IDX file").into());
    }
    Ok(bytes.split_off(header))
}
