/* Copies a list of pieces, one per block in x: between device memory and pinned memory of the host.
 * `kernel.rs` launches it, and its PTX stands in pieces.ptx, see the first lines there. */

struct Piece {
  unsigned long long to;
  unsigned long long from;
  unsigned long long size; /* in bytes */
};

/* 4,088 bytes: arguments may have 4,096 in PTX of this age. */
struct Pieces {
  Piece list[170];
  unsigned long long count;
};

/* One piece by the threads of all blocks of this x, in words that both addresses are aligned to. */
template <typename Word>
__device__ void copy_words(char* to, const char* from, unsigned long long size,
                           unsigned long long thread, unsigned long long threads) {
  unsigned long long words = size / sizeof(Word);
  for (unsigned long long i = thread; i < words; i += threads)
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  for (unsigned long long i = words * sizeof(Word) + thread; i < size; i += threads)
    to[i] = from[i];
}

extern "C" __global__ void kvb_copy_pieces(const Pieces pieces) {
  if (blockIdx.x >= pieces.count) return;
  unsigned long long to = pieces.list[blockIdx.x].to;
  unsigned long long from = pieces.list[blockIdx.x].from;
  unsigned long long size = pieces.list[blockIdx.x].size;
  unsigned long long thread = blockIdx.y * blockDim.x + threadIdx.x;
  unsigned long long threads = gridDim.y * blockDim.x;
  /* Bytes up to where the target is aligned; the source is then too, or never. */
  unsigned long long head = (16 - to % 16) % 16;
  if (head > size) head = size;
  char* out = reinterpret_cast<char*>(to);
  const char* in = reinterpret_cast<const char*>(from);
  if (to % 16 == from % 16) {
    if (thread < head) out[thread] = in[thread];
    copy_words<uint4>(out + head, in + head, size - head, thread, threads);
  } else if (to % 4 == 0 && from % 4 == 0) {
    copy_words<unsigned>(out, in, size, thread, threads);
  } else {
    copy_words<char>(out, in, size, thread, threads);
  }
}
