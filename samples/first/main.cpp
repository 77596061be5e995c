#include <torch/torch.h>
#include <zerorun/zerorun.h>

int main() {
  return zerorun::run_program([] {
    torch::nn::Sequential model(torch::nn::Linear(256, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
    zerorun::Engine engine = zerorun::initialize(*model, "ds_config.json");  // joins the other ranks
    for (int step = 1; step <= 100; ++step) {
      at::Tensor x = torch::randn({engine.config().batch.micro_batch_size_per_gpu, 256}, engine.device());
      at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(x), x.slice(1, 0, 10).argmax(1));
      engine.backward(loss);  // reduces gradients while backward runs
      engine.step();          // clips, updates, gathers parameters, advances the learning rate
      if (step % 20 == 0 && engine.communicator().rank() == 0)
        std::printf("step %d: loss %.3f\n", step, loss.item<double>());
    }
    return 0;
  });
}
