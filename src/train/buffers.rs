//! The collective for any program: sums of its own buffers over all workers of a group, in place.
//!
//! Every worker calls the same function with a buffer of the same length, and all leave with the
//! same bits. Nothing else may be under way in the group.

use super::collective::Group;
use crate::net::NetError;
use crate::numerics::shared_exponent::SharedExponent;
use crate::protocol::collective::{CollectiveId, Content, Reduction};
use crate::protocol::exchange::Algorithm;

/// Why buffers could not be summed.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    #[error(
        "a value that is not finite, on this worker or another: it has no exact sum; \
         look for it in what was computed, or sum in ring order"
    )]
    NotFinite,
    #[error("sums in ring order need the ring: join with Strategy::Auto or Strategy::Ring")]
    NoRing,
    #[error(transparent)]
    Net(#[from] NetError),
}

impl Group {
    /// Sums integers over all workers, with wrap-around.
    ///
    /// # Errors
    /// If the group fails.
    ///
    /// # Panics
    /// If a vector is under way.
    pub fn all_reduce_i32(&mut self, values: &mut [i32]) -> Result<(), BufferError> {
        let vector = bytemuck::cast_slice(values).to_vec();
        let sums = self.reduce_buffer(Reduction::sums(vector.len()), vector)?;
        values.copy_from_slice(bytemuck::cast_slice(&sums));
        Ok(())
    }

    /// Sums floats over all workers, exactly: the result's bits depend neither on the order of the
    /// workers nor on the algorithm. See [`SharedExponent`] for how close it is.
    ///
    /// The largest magnitude is found first, by an all-reduce of one word.
    ///
    /// # Errors
    /// If a worker has a value that is not finite: all workers are told, none has changed its
    /// buffer, and the group goes on. Or if the group fails.
    ///
    /// # Panics
    /// If a vector is under way.
    pub fn all_reduce_f32(&mut self, values: &mut [f32]) -> Result<(), BufferError> {
        // Magnitudes are ordered as their bits are, and above all finite ones lies what is not.
        let largest = values.iter().map(|value| value.abs().to_bits()).max().unwrap_or(0);
        let largest = self.reduce_buffer(Reduction::maxima(1), vec![largest])?;
        let largest = f32::from_bits(largest[0]);
        if !largest.is_finite() {
            return Err(BufferError::NotFinite);
        }
        let exponent = SharedExponent::new(largest, self.workers());
        let vector = values.iter().map(|&value| exponent.quantize(value) as u32).collect();
        let sums = self.reduce_buffer(Reduction::sums(values.len()), vector)?;
        for (value, sum) in values.iter_mut().zip(sums) {
            *value = exponent.dequantize(sum as i32);
        }
        Ok(())
    }

    /// Sums floats over all workers as plain `f32` additions in the order of the ring, as other
    /// libraries do: all workers have the same bits, but another number or order of workers gives
    /// others. Saves the exact sum's conversion, and its all-reduce of one word.
    ///
    /// # Errors
    /// If the group was joined without a ring, or fails.
    ///
    /// # Panics
    /// If a vector is under way.
    pub fn all_reduce_f32_in_ring_order(&mut self, values: &mut [f32]) -> Result<(), BufferError> {
        if !self.can_use(Algorithm::Ring) {
            return Err(BufferError::NoRing);
        }
        let vector = bytemuck::cast_slice(values).to_vec();
        let id = self.buffer_id();
        let reduction = Reduction::float_sums(vector.len());
        let sums = self.reduce_by(Algorithm::Ring, id, reduction, vector)?;
        values.copy_from_slice(bytemuck::cast_slice(&sums));
        Ok(())
    }

    fn reduce_buffer(
        &mut self,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<Vec<u32>, NetError> {
        let id = self.buffer_id();
        self.reduce(id, reduction, vector)
    }

    fn buffer_id(&mut self) -> CollectiveId {
        let step = self.next_buffer();
        CollectiveId { generation: 0, step, attempt: 0, content: Content::Buffer }
    }
}
