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

__device__ void copy_piece(const Piece piece) {
  unsigned long long thread = blockIdx.y * blockDim.x + threadIdx.x;
  unsigned long long threads = gridDim.y * blockDim.x;
  char* to = reinterpret_cast<char*>(piece.to);
  const char* from = reinterpret_cast<const char*>(piece.from);
  if (piece.to % 16 == piece.from % 16) {
    /* Bytes up to where both are aligned. A block has more threads than these. */
    unsigned long long head = (16 - piece.to % 16) % 16;
    if (head > piece.size) head = piece.size;
    if (thread < head) to[thread] = from[thread];
    copy_words<uint4>(to + head, from + head, piece.size - head, thread, threads);
  } else if (piece.to % 4 == 0 && piece.from % 4 == 0) {
    copy_words<unsigned>(to, from, piece.size, thread, threads);
  } else {
    copy_words<char>(to, from, piece.size, thread, threads);
  }
}

extern "C" __global__ void kvb_copy_pieces(const Pieces pieces) {
  if (blockIdx.x < pieces.count) copy_piece(pieces.list[blockIdx.x]);
}
