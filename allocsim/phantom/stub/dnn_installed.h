/* The cuDNN that is installed beside PyTorch, asked about a card that is not there.
 *
 * From 9.8 on cuDNN answers for a card that a program describes: its heuristics and its plans then
 * need no device.  Nothing is compiled or run, and NVIDIA's driver is not asked.
 */
#ifndef ALLOCSIM_PHANTOM_DNN_INSTALLED_H
#define ALLOCSIM_PHANTOM_DNN_INSTALLED_H

#include "dnn_backend.h"

/* The kinds of knobs that a law reads, by their numbers in cudnn_graph.h. */
enum dnn_knob {
  DNN_KNOB_TILE = 2,
  DNN_KNOB_WORKSPACE = 25,
  DNN_KNOB_CLUSTER_M = 27,
  DNN_KNOB_CLUSTER_N = 28,
};

#define DNN_MOST_KNOBS 16

/* The configuration that the heuristics put first for a graph. */
struct dnn_choice {
  int64_t workspace;
  size_t n_knobs;
  struct {
    int kind;
    int64_t value;
  } knobs[DNN_MOST_KNOBS];
};

/* The value of a knob, -1 where the configuration has no such knob. */
int64_t dnn_knob_of(const struct dnn_choice *choice, enum dnn_knob kind);

/* Ask for a graph on the phantom's card.  Return 0 where the installed cuDNN cannot answer. */
int dnn_installed_choice(const struct dnn_descriptor *graph, struct dnn_choice *out);

#endif
