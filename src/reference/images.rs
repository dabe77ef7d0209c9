//! From bytes to the network's input.

use crate::data::dataset::{ImageSet, Normalization};
use crate::model::layers::IMAGE_PIXELS;

/// Writes the normalized images of `samples`, `pixel * scale + offset`, to `images`
/// (N, 1, 28, 28).
///
/// # Panics
/// If a sample is not in the set, or `images` has not the room.
pub fn gather_images(
    set: &ImageSet,
    normalization: Normalization,
    samples: impl ExactSizeIterator<Item = u32>,
    images: &mut [f32],
) {
    assert_eq!(images.len(), samples.len() * IMAGE_PIXELS, "room for every sample");
    for (sample, image) in samples.zip(images.chunks_exact_mut(IMAGE_PIXELS)) {
        let pixels = &set.pixels[sample as usize * IMAGE_PIXELS..][..IMAGE_PIXELS];
        for (value, &pixel) in image.iter_mut().zip(pixels) {
            *value = f32::from(pixel) * normalization.scale + normalization.offset;
        }
    }
}
