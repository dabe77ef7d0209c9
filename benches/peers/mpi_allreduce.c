/* MPI_Allreduce over floats, timed as `annulet bench collective` times: before each iteration the
 * ranks meet at a barrier, and an iteration's time is the mean over the ranks. One JSON line a size
 * goes to stdout; every result is checked.
 *
 *   mpi_allreduce ITERS WARMUP BYTES...
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        fprintf(stderr, "mpi_allreduce: out of memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

static void measure(size_t bytes, int iterations, int warmup, int rank, int ranks) {
    int count = (int)(bytes / sizeof(float));
    float *own = allocate(bytes), *sum = allocate(bytes);
    double *times = allocate(sizeof(double) * iterations);
    double *means = allocate(sizeof(double) * iterations);
    long wrong = 0, faults = 0;
    for (int i = 0; i < warmup + iterations; i++) {
        /* Small integers, so that sums of floats are exact in any order. */
        for (int k = 0; k < count; k++) own[k] = (float)(rank + i);
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        MPI_Allreduce(own, sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double took = MPI_Wtime() - began;
        float expected = (float)(ranks * i + ranks * (ranks - 1) / 2);
        for (int k = 0; k < count; k++) wrong += sum[k] != expected;
        if (i >= warmup) times[i - warmup] = 1e6 * took;
    }
    MPI_Reduce(times, means, iterations, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &faults, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(version, &length);
        for (int k = 0; k < length; k++) {
            if (version[k] == ',' || version[k] == '\n') version[k] = '\0';
        }
        printf("{\"peer\": \"mpi\", \"version\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"wrong\": %ld, "
               "\"times_us\": [", version, ranks, bytes, faults);
        for (int i = 0; i < iterations; i++) printf("%s%.3f", i ? ", " : "", means[i] / ranks);
        printf("]}\n");
        fflush(stdout);
    }
    free(own);
    free(sum);
    free(times);
    free(means);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int iterations = argc > 3 ? atoi(argv[1]) : 0, warmup = argc > 3 ? atoi(argv[2]) : 0;
    if (iterations < 1 || warmup < 0) {
        if (rank == 0) fprintf(stderr, "usage: mpi_allreduce ITERS WARMUP BYTES...\n");
        MPI_Finalize();
        return 2;
    }
    for (int k = 3; k < argc; k++) {
        measure(strtoull(argv[k], NULL, 10), iterations, warmup, rank, ranks);
    }
    MPI_Finalize();
    return 0;
}
